"""The identity of callers: subjects, tokens, and the objects they represent."""
