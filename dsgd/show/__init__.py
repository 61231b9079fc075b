"""What people look at: reports, the live page, the terminal."""
