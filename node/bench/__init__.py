"""`shoal bench`: what this machine does with a model, and the settings that follow from it.

`rates.py` measures the machine's products, `work.py` the model's sampling and updates, `advice.py` turns both into
settings without measuring anything, `run.py` goes through it in the time that was given.
"""
