"""What runs in the processes of workers and servers."""
