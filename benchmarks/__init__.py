"""The evaluation: does measuring only what can change the decision cost less, and is the decision the same?"""
