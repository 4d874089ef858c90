"""Tessera under the training loops of other packages. Each module needs its package:

    tessera.integrations.accelerate     Accelerator, for loops on Hugging Face's accelerate
    tessera.integrations.transformers   Trainer, in place of transformers.Trainer
    tessera.integrations.lightning      TesseraStrategy, for lightning.Trainer

`import tessera` imports none of them.
"""
