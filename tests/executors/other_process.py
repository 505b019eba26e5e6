"""A process that lays batches into the slots that it is sent. Run as a program: ``other_process.py SOCKET [LIMIT]``."""

import pickle
import resource
import socket
import sys

import numpy as np
import torch

from torchstage.executors.desk import Desk

kept = []


def made(desk, kind, number, size):
    match kind:
        case "room":
            return desk.empty((size,), torch.float32).fill_(number)
        case "tensor":
            return {"x": torch.full((size,), float(number)), "label": torch.tensor(number)}
        case "array":
            return np.full(size, number, np.float32)
        case "kept":
            kept.append(desk.empty((size,), torch.float32).fill_(number))
            return kept[-1]
        case _:
            return [number, "word"]


def main():
    if len(sys.argv) > 2:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
    line, desk = socket.socket(fileno=int(sys.argv[1])), Desk()
    while True:
        content, files, _, _ = socket.recv_fds(line, 1 << 16, 1)
        if not content:
            return
        number, order = pickle.loads(content)
        desk.take(number, files[0] if files else None)
        parcel = desk.pack(made(desk, *order))
        text = pickle.dumps(desk.sealed(parcel))
        line.sendall(len(text).to_bytes(8, "little") + text)


if __name__ == "__main__":
    main()
