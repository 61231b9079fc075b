"""What changes values between workers and server: compression, lying workers, aggregation."""
