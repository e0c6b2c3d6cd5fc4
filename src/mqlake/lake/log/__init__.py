"""Store directories read in place: where their logs end, which parts a query needs, and the tasks that read these."""
