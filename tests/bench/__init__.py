"""What is tested of `bench/`, which is no part of the package."""
