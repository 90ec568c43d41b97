"""What `shoal doctor` looks at: each check is a function with a deadline of its own."""
