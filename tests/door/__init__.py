"""The public door and the stream between services, over real gRPC and under mutated messages."""
