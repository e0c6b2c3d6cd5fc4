"""What a broker does in the background or over connections of its own."""
