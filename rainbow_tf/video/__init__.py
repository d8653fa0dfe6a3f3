"""Videos of a policy and its value estimates."""
