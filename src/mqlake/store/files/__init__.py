"""Files on disk: mapped files, their queues and pools, allocation ahead of use, the lock."""
