"""The Spark sources over store directories: `commitlog`, `consumequeue`, `mqindex`, and counts over them."""
