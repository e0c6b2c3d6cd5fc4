"""The sources that read store directories: `commitlog`, `consumequeue`, `mqindex`, and counts over them."""
