"""Faults that users of other systems met, each as a family: every slot of a block, both lookaheads, all rules.

Row of the list of known faults -> where it is held. What rows ask of laws of chance is held in tests/exactness.

    A  1 2 8 14 88   test_endings: an end token in every slot, the seed replays
       3 6 11        test_endings: stop strings in every slot, across blocks, inside pieces; test_text, test_resume
       4             test_endings: which limit comes first
       7             test_endings: max_tokens is exact
       10 16         test_endings: end tokens that only the draft says, or that only its model has
       13            test_endings: the edge of the context
    B  17 19 29 34   tests/exactness (statistical)
       18 20 21      test_parameters, test_seeds: the reference's text
       22 23         test_parameters: low temperatures; test_seeds: a batch of all kinds
       25 26 27      test_seeds
       30            test_poison
       31 32 33      test_bad_drafts
    C  36 37 39 41   test_seeds: in float64 exactly; 58 (of D) too
    F  70 71 74      test_parameters: every row is processed, min_tokens counts tokens
       72            tests/door: bad inputs, row 15
       73            test_parameters: one request of three, by logit_bias, since there is no bad_words
       75 76 77 78   not offered: custom processors, grammars, n > 1 and best_of, LoRA
    G  79 80 81      test_logprobs
       82 84 - 87    test_text
    H  89            oracle.check_counts, on every answer of every test
    I  91 92 94      test_lifecycle; over gRPC in tests/door and tests/system
       95            test_bad_drafts
"""
