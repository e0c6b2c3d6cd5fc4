"""`mqlake demo`: a year of flights through the store and Spark, with a crash in the middle.

flights     the data set as messages, and what any reading of them must come to
writer      the process that writes, until it is done or killed
questions   what Spark is asked, as functions from DataFrame to DataFrame
demo        the command: runs the writer, kills it, asks, compares
picture     what it draws at the end
"""
