"""Guards, effects and results of a finished capture as the text of a program."""
