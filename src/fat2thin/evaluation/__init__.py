"""How good a policy is: returns, their statistics, and tables of both."""
