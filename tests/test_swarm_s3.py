"""The store of records on an object store: S3's own protocol, spoken by a server on this
machine."""

import gzip
from concurrent.futures import ThreadPoolExecutor

import fsspec
import pytest
from moto.server import ThreadedMotoServer

from marl_plugins.swarm.store import MOST_RECORD_BYTES, RecordName, RecordStore


@pytest.fixture(scope="module")
def bucket():
    """The address of an empty bucket, as `--swarm.store` takes it; the server is named as users
    name theirs, in the environment."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL_S3", f"http://{host}:{port}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        fsspec.filesystem("s3", skip_instance_cache=True).mkdir("swarm")
        yield "s3://swarm/peers"
    server.stop()


def name(number, round=3, peer="a"):
    return RecordName(round, peer, "0" * 8, f"{number:016x}")


def packed(text):
    return gzip.compress(text.encode())


def test_a_record_is_written_once_listed_read_and_removed(bucket):
    store, other = RecordStore(bucket), RecordStore(bucket)
    assert store.names() == []
    assert store.put(name(1), packed("one")) and not other.put(name(1), packed("other"))
    assert other.get(name(1)) == b"one" and other.names() == [name(1)]
    assert store.put(name(2, 12), packed("two")) and store.put(name(3, None), packed("three"))
    assert other.names() == [name(1), name(2, 12), name(3, None)] and other.names(range(4)) == [
        name(1),
        name(3, None),
    ]
    store.files.pipe_file(f"{store.root}/000003/readme.txt", b"no record")
    assert other.names() == [name(1), name(2, 12), name(3, None)]
    with pytest.raises(FileNotFoundError):
        store.get(name(9))
    with pytest.raises(ValueError, match="bytes"):
        store.put(name(4), b"x" * (MOST_RECORD_BYTES + 1))
    store.remove([name(1), name(1), name(2, 12), name(3, None)])
    assert RecordStore(bucket).names() == []


def test_writers_at_the_same_time_lose_nothing(bucket):
    def write(peer):
        store = RecordStore(bucket)
        return sum(
            store.put(name(number, 5, f"p{peer}"), packed(f"{peer}-{number}"))
            for number in range(12)
        )

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(write, range(4))) == 48
    store = RecordStore(bucket)
    names = store.names()
    assert len(names) == 48 and all(
        store.get(n).decode() == f"{n.peer[1:]}-{int(n.key, 16)}" for n in names
    )
    store.remove(names)
