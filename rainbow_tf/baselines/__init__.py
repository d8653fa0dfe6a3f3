"""Agents of other papers that are no kind of DQN."""
