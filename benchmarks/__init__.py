"""Speed and memory of torchstage beside its peers: cases in, JSON and tables out. See README.md."""
