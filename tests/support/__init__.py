"""What the tests share: a real redis-server, waiting on conditions, and the machinery around them."""
