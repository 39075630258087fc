"""Who a caller is: subjects, the tokens that prove them, and what objects they stand for."""
