"""HTTP/2 as gRPC uses it, on asyncio: header compression, frames and flow control, and calls on top of them."""
