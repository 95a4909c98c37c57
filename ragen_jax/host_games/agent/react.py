"""A ReAct agent: it looks up ages, calculates, and answers. The page's example.

docs/agents.md prints this file. The agent is an ordinary program: its loop, its tools
and its dialogue are its own, and any server that speaks the OpenAI API can answer it.
"""

import json
import random
import re
import urllib.request

NAMES = ("Ada", "Bela", "Dina", "Emil", "Femi", "Gita", "Hugo", "Ines", "Jomo")
RULES = "Tools: search NAME, add A B. At the end: finish NUMBER."


def ask(client, messages):
    """The model's reply."""
    body = json.dumps({"model": client.model, "messages": messages}).encode()
    headers = {
        "Content-Type": "application/json",
        "Authorization": f"Bearer {client.api_key}",
    }
    request = urllib.request.Request(
        f"{client.base_url}/chat/completions", body, headers
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]


def use(ages, text):
    """What a tool answers; None where the text asks for none."""
    if found := re.fullmatch(r"search (\w+)", text):
        return str(ages.get(found[1], "unknown"))
    if found := re.fullmatch(r"add (\d+) (\d+)", text):
        return str(int(found[1]) + int(found[2]))
    return None


def episode(task, client):
    """How old are two people together? Right: 1, else 0."""
    # A quarter of the pairs, always the same ones, are for validation.
    draw = random.Random(task.seed)
    while True:
        names = draw.sample(NAMES, 2)
        is_held_out = (NAMES.index(names[0]) + NAMES.index(names[1])) % 4 == 0
        if is_held_out == (task.split == "validation"):
            break
    ages = {name: draw.randint(10, 99) for name in NAMES}
    question = f"What is the age of {names[0]} and {names[1]} together?"
    messages = [
        {"role": "system", "content": RULES},
        {"role": "user", "content": question},
    ]
    for _ in range(6):
        reply = ask(client, messages)
        text = reply["content"].strip()
        if found := re.fullmatch(r"finish (\d+)", text):
            return float(int(found[1]) == sum(ages[name] for name in names))
        answer = use(ages, text) or "This is no tool."
        messages += [reply, {"role": "user", "content": answer}]
    return 0.0


def expert(task, call):
    """What a player writes that knows the tools; two in three answer too early."""
    *_, question = re.findall(r"age of (\w+) and (\w+)", call.messages[1]["content"])
    asked = [m["content"] for m in call.messages[2:] if m["role"] == "assistant"]
    shown = [m["content"] for m in call.messages[2:] if m["role"] == "user"]
    is_hasty = random.Random(task.seed + 1).random() < 2 / 3
    if len(asked) < 2 and not (is_hasty and asked):
        return f"search {question[len(asked)]}"
    if is_hasty:
        return f"finish {shown[0]}"
    if len(asked) == 2:
        return f"add {shown[0]} {shown[1]}"
    return f"finish {shown[2]}"
