"""Access control: who may do what.

request ─▶ signature ─▶ user ─▶ requests: what it needs ─▶ evaluator: is that allowed? ─▶ processor
           (authentication)                                (authorization)

model       users, resources, actions, policies, and their JSON
signature   what clients add to a request, and its check
requests    one table: request code → what it needs
evaluator   the policies' decision
state       all users and acls, and every change of them, as pure functions
storage     the state on disk
access      AccessControl: all of it together, for a broker, a name server, a proxy
plain_acl   the older form: plain_acl.yml (ACL 1.0)
"""
