"""The typed headers of the codes, by family; `codec` says what a field's declaration means.

produce   consume   admin   namesrv
"""
