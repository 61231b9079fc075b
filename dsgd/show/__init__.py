"""What people look at: report/, the live/ page, the terminal/."""
