"""What is played: Atari as the paper plays it, and Gymnasium."""
