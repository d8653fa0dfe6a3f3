"""Films of a policy at play."""
