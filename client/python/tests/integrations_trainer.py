"""One rank of integrations_test: integrations_trainer.py KIND OUT OPTIONS (JSON).

KIND: transformers, seq2seq, accelerate, lightning or batches. OPTIONS["plain"]: one process, no tessera.
Rank 0 writes its log to OUT/log.json, and the model's state to OUT/model.pt.
"""

import json
import os
import pathlib
import signal
import sys

import torch
from torch import nn

RANK, RANKS = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Net(nn.Sequential):
    """Has parameters outside of its blocks, which are the root's."""

    def __init__(self):
        super().__init__(nn.Linear(4, 8), Block(), Block(), nn.Linear(8, 1))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return super().forward(x) * self.scale


def data(rows=32):
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(3))


def loss_of(model, x):
    return (model(x) - x.sum(1, keepdim=True)).square().mean()


def gpt2(dropout=0.0):
    import transformers
    torch.manual_seed(1)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=128, n_positions=32, n_embd=32, n_layer=3, n_head=4, attn_pdrop=dropout,
        embd_pdrop=dropout, resid_pdrop=dropout, bos_token_id=0, eos_token_id=0))


def tokens(rows=32):
    made = torch.randint(128, (rows, 16), generator=torch.Generator().manual_seed(3))
    return [{"input_ids": row, "labels": row} for row in made]


def t5():
    import transformers
    torch.manual_seed(1)
    return transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=16, d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4, dropout_rate=0.0,
        decoder_start_token_id=0))


def sequences(rows=16):
    """Four with a short answer, four with a long one, and so on."""
    made = []
    for i in range(rows):
        tokens = 1 + i // 4 % 2 * 4
        labels = [9] * tokens + [1] + [-100] * (6 - tokens)  # It ends, and is filled up.
        made.append({"input_ids": torch.full((4,), 2 + tokens), "labels": torch.tensor(labels)})
    return made


def arguments_of_transformers(out, kind=None, **changed):
    import transformers
    return (kind or transformers.TrainingArguments)(**{
        "output_dir": str(out), "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4,
        "max_steps": 6, "logging_steps": 1, "learning_rate": 1e-3, "weight_decay": 0.1,
        "warmup_steps": 2, "use_cpu": True, "report_to": [], "save_strategy": "no",
        "disable_tqdm": True, **changed})


def train_transformers(out, options):
    import transformers
    from transformers import Trainer
    if not options.pop("plain", False):
        from tessera.integrations.transformers import Trainer
    resume = options.pop("resume", None)
    model, kill = gpt2(options.pop("dropout", 0.0)), options.pop("kill", None)

    class Killed(transformers.TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, **kwargs):
            if RANK == 1 and state.global_step == kill:
                os.kill(os.getpid(), signal.SIGKILL)

    trainer = Trainer(model=model, args=arguments_of_transformers(out, **options),
                      train_dataset=tokens(), eval_dataset=tokens(8), callbacks=[Killed()])
    assert isinstance(trainer, transformers.Trainer)
    trainer.train(resume_from_checkpoint=resume)
    trainer.save_model(str(out / "final"))
    return model, trainer.state.log_history


def train_seq2seq(out, options):
    import transformers
    from tessera.integrations.transformers import Seq2SeqTrainer
    model = t5()
    trainer = Seq2SeqTrainer(
        model=model, train_dataset=sequences(), eval_dataset=sequences(), args=arguments_of_transformers(
            out, transformers.Seq2SeqTrainingArguments, predict_with_generate=True,
            generation_max_length=10, eval_strategy="steps", eval_steps=3, **options))
    before = trainer.predict(sequences()).predictions
    trainer.train()
    found = trainer.predict(sequences()).predictions
    assert found.shape != before.shape or (found != before).any()
    return model, found.tolist()


def train_accelerate(out, options):
    import accelerate
    model = Net()
    if options.get("plain"):
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    else:
        import tessera
        from tessera.integrations.accelerate import Accelerator
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        tessera.shard(model, Block, config={"gradient_slots": 0})
        opt = tessera.AdamW(model, lr=1e-2)
    loader = torch.utils.data.DataLoader(data(), batch_size=4 // accelerator.num_processes)
    model, opt, loader = accelerator.prepare(model, opt, loader)
    schedule = torch.optim.lr_scheduler.ExponentialLR(opt.optimizer, 0.9)
    accelerator.register_for_checkpointing(schedule)
    log = []
    if options.get("resume"):
        accelerator.load_state(options["resume"])
    for epoch in range(options.get("from", 0), 2):
        for x in loader:
            with accelerator.accumulate(model):
                loss = loss_of(model, x)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    log.append(float(accelerator.clip_grad_norm_(model.parameters(), 0.5)))
                opt.step()
                if accelerator.sync_gradients:
                    schedule.step()
                opt.zero_grad()
        if epoch == 0:
            accelerator.save_state(str(out / "state"))
    return model, log


def train_lightning(out, options):
    import lightning
    is_plain, resume = options.pop("plain", False), options.pop("resume", None)
    rows = options.pop("rows", 4)

    class Lit(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.shift, self.norms = Net(), nn.Parameter(torch.zeros(1)), []

        def forward(self, x):
            return self.net(x) + self.shift

        def training_step(self, x, number):
            del number
            loss = loss_of(self, x)
            self.log("loss", loss, sync_dist=True)
            return loss

        def validation_step(self, x, number):
            del number
            self.log("val", (self(x) + self.shift).mean(), sync_dist=True)

        def configure_optimizers(self):
            if is_plain:
                opt = torch.optim.AdamW(self.parameters(), lr=1e-2)
            else:
                import tessera
                opt = tessera.AdamW(self, lr=1e-2)
            schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)
            return [opt], [{"scheduler": schedule, "interval": "step"}]

    strategy = "auto"
    if not is_plain:
        from tessera.integrations.lightning import TesseraStrategy
        strategy = TesseraStrategy(units=Block)
    x = data()
    sampler = torch.utils.data.DistributedSampler(x, RANKS, RANK, shuffle=False)
    loader = torch.utils.data.DataLoader(x, batch_size=rows, sampler=sampler)
    trainer = lightning.Trainer(
        strategy=strategy, accelerator="cpu", devices=RANKS, default_root_dir=str(out),
        use_distributed_sampler=False, logger=False, enable_progress_bar=False,
        enable_model_summary=False, gradient_clip_val=0.5, **options)
    model = Lit()
    trainer.validate(model, loader, verbose=False)  # Before fit(), which it must not spoil.
    trainer.fit(model, loader, loader, ckpt_path=resume)
    log = {name: float(value) for name, value in trainer.callback_metrics.items()}
    trainer.save_checkpoint(str(out / "end.ckpt"))
    return model, log


def train_batches(out, options):
    """Two epochs of four steps, and one more; on from OUT/checkpoint, if it is there."""
    import tessera
    from torchdata.stateful_dataloader import StatefulDataLoader
    model = tessera.shard(Net(), Block)
    opt = tessera.AdamW(model, lr=1e-2)
    x, sharded = data(28), model.tessera
    sampler = torch.utils.data.DistributedSampler(x, sharded.world_size, sharded.rank, seed=5)
    batches = tessera.Batches(StatefulDataLoader(x, batch_size=4, sampler=sampler), model)
    path, mark = out / "checkpoint", out / "killed"
    if sharded.next_step == 1 and path.is_dir():
        tessera.load(model, path)
    for batch in batches:
        step = sharded.next_step
        if step > options["steps"]:
            break

        def closure():
            loss = loss_of(model, batch)
            loss.backward()
            if step == options.get("kill") and RANK == 1 and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return loss

        opt.step(closure)
        if step == options.get("save"):
            tessera.save(model, path)
    return model, []


def main():
    kind, out, options = sys.argv[1], pathlib.Path(sys.argv[2]), json.loads(sys.argv[3])
    out.mkdir(exist_ok=True)
    torch.manual_seed(1)
    train = {"transformers": train_transformers, "seq2seq": train_seq2seq,
             "accelerate": train_accelerate, "lightning": train_lightning,
             "batches": train_batches}[kind]
    model, log = train(out, options)
    state = model.state_dict()
    if RANK == 0:
        (out / "log.json").write_text(json.dumps(log))
        torch.save(state, out / "model.pt")


if __name__ == "__main__":
    main()
