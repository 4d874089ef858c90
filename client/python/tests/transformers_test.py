"""A model of Hugging Face's transformers, as its users train one."""

import copy
import os
import pathlib
import tempfile
import unittest

import torch

import tessera
from tessera import _cluster

try:
    import transformers
except ImportError:
    transformers = None

ON_GPU = os.environ.get("TESSERA_TEST_GPU") == "1"
_folder = tempfile.TemporaryDirectory(prefix="tessera-test-")


def setUpModule():
    if transformers is None:
        raise unittest.SkipTest("the package transformers is not installed")
    folder = pathlib.Path(_folder.name) / "cluster"
    folder.mkdir()
    cluster = _cluster.Cluster(folder, 8, 0 if ON_GPU else None)
    unittest.addModuleCleanup(cluster.stop)
    found = cluster.addresses()
    tessera.init(coordinator=found["TESSERA_COORDINATOR"], worker=found["TESSERA_WORKER"])


def gpt2():
    torch.manual_seed(1)
    config = transformers.GPT2Config(
        vocab_size=128, n_positions=32, n_embd=32, n_layer=3, n_head=4, attn_pdrop=0.0,
        embd_pdrop=0.0, resid_pdrop=0.0, bos_token_id=0, eos_token_id=0)
    return transformers.GPT2LMHeadModel(config)


class TransformersTest(unittest.TestCase):
    def test_gpt2_with_tied_embeddings_trains_as_the_plain_model(self):
        from transformers.models.gpt2.modeling_gpt2 import GPT2Block
        device = torch.device("cuda" if ON_GPU else "cpu")
        plain = gpt2().to(device)
        sharded = tessera.shard(copy.deepcopy(plain), GPT2Block, job="gpt2")
        self.addCleanup(sharded.tessera.detach)
        self.assertIs(sharded.lm_head.weight, sharded.transformer.wte.weight)
        theirs = torch.optim.AdamW(plain.parameters(), lr=1e-3)
        ours = tessera.AdamW(sharded, lr=1e-3)
        tokens = torch.randint(128, (8, 4, 32), generator=torch.Generator().manual_seed(3))
        for batch in tokens.to(device):
            losses = []
            for model, optimizer in ((plain, theirs), (sharded, ours)):
                optimizer.zero_grad()
                loss = model(input_ids=batch, labels=batch).loss
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            self.assertAlmostEqual(*losses, places=4)
        sharded.eval()
        with torch.no_grad():
            expected = plain.eval()(tokens[0].to(device)).logits
            actual = sharded(tokens[0].to(device)).logits
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)

    def test_a_model_that_is_saved_here_opens_there_byte_for_byte(self):
        from transformers.models.gpt2.modeling_gpt2 import GPT2Block
        device = torch.device("cuda" if ON_GPU else "cpu")
        sharded = tessera.shard(gpt2().to(device), GPT2Block, job="saved")
        self.addCleanup(sharded.tessera.detach)
        optimizer = tessera.AdamW(sharded, lr=1e-3)
        tokens = torch.randint(128, (4, 32), generator=torch.Generator().manual_seed(3)).to(device)
        sharded(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        with tempfile.TemporaryDirectory() as folder:
            tessera.save_model(sharded, f"{folder}/model.safetensors")
            sharded.config.save_pretrained(folder)
            opened = transformers.GPT2LMHeadModel.from_pretrained(folder)
        expected = sharded.state_dict()
        for name, value in opened.state_dict().items():
            self.assertTrue(torch.equal(value, expected[name].cpu()), name)

    def test_generation_between_steps(self):
        from transformers.models.gpt2.modeling_gpt2 import GPT2Block
        device = torch.device("cuda" if ON_GPU else "cpu")
        plain = gpt2().to(device).eval()
        sharded = tessera.shard(copy.deepcopy(plain), GPT2Block, job="generate")
        self.addCleanup(sharded.tessera.detach)
        prompt = torch.tensor([[5, 6, 7]], device=device)
        settings = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
        self.assertTrue(torch.equal(plain.generate(prompt, **settings),
                                    sharded.generate(prompt, **settings)))


if __name__ == "__main__":
    unittest.main()
