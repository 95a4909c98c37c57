"""Record what a client and a server say to each other, as the tests replay it.

Arguments: official or ours (the client), the server's URL, actions as a JSON list of
episodes, the file to write. The official client needs the Python of a virtual
environment that has openenv. What a request was answered follows it; the documents of
the server are recorded, too.
"""

import json
import pathlib
import sys
import urllib.request

PAIRS: list[list] = []


def tap_official() -> None:
    from websockets.asyncio.connection import Connection

    send, receive = Connection.send, Connection.recv

    async def noted_send(self, message):
        PAIRS.append([json.loads(message), None])
        await send(self, message)

    async def noted_receive(self):
        message = await receive(self)
        PAIRS[-1][1] = json.loads(message)
        return message

    Connection.send, Connection.recv = noted_send, noted_receive


def tap_ours() -> None:
    from websockets.sync.connection import Connection

    send, receive = Connection.send, Connection.recv

    def noted_send(self, message):
        PAIRS.append([json.loads(message), None])
        send(self, message)

    def noted_receive(self, timeout=None):
        message = receive(self, timeout)
        PAIRS[-1][1] = json.loads(message)
        return message

    Connection.send, Connection.recv = noted_send, noted_receive


def play_official(url: str, episodes: list[list[dict]]) -> None:
    from openenv.core.generic_client import GenericEnvClient

    tap_official()
    with GenericEnvClient(base_url=url).sync() as client:
        for number, actions in enumerate(episodes):
            client.reset(seed=number, episode_id=f"episode {number}")
            client.state()
            for action in actions:
                try:
                    client.step(action)
                except RuntimeError as error:
                    print(error, file=sys.stderr)
                client.state()


def play_ours(url: str, episodes: list[list[str]]) -> None:
    from ragen_jax.host_games.adapters.openenv import OpenEnvGame

    tap_ours()
    game = OpenEnvGame("training", url)
    for number, replies in enumerate(episodes):
        game.reset(number)
        for reply in replies:
            try:
                game.step(reply)
            except ConnectionError as error:
                print(error, file=sys.stderr)
    game.close()


def main() -> None:
    client, url, actions, path = sys.argv[1:]
    documents = {}
    for name in ("metadata", "schema"):
        with urllib.request.urlopen(f"{url}/{name}", timeout=10) as response:
            documents[name] = json.load(response)
    play = {"official": play_official, "ours": play_ours}[client]
    play(url, json.loads(actions))
    pairs = [pair for pair in PAIRS if pair[0]["type"] != "close"]
    lines = ",\n".join(json.dumps(pair) for pair in pairs)
    text = f'{{"documents": {json.dumps(documents)},\n"pairs": [\n{lines}\n]}}\n'
    pathlib.Path(path).write_text(text)


if __name__ == "__main__":
    main()
