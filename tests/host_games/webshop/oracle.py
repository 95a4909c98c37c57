"""What a purchase pays by the rules of WebShop's code, step by step.

Written from their description: an attribute wanted is met by a similar one of the
product, or by its title, features or description; an option wanted by a similar one
that was chosen, colours compared as such; the price by the limit. The share that is met
is multiplied by 1, 0.5, 0.1 or 0, by the nouns of both titles, the query and the
categories.
"""

import re


def pays(goal, wanted, bought, *, chosen, price, limit, nouns, ratio, colors):
    """The reward.

    Args:
      nouns: gives the nouns of a title, each as often as it is there.
      ratio: of two plain texts, from 0 to 100.
      colors: names of colours, in the order in which they are looked for.
    """

    def similar(first, second):
        return round(ratio(plain(first), plain(second))) > 85

    def color(value):
        for name in colors:
            if value.find(name) >= 0:
                return name
        return value

    met = 0
    texts = (bought.name, " ".join(bought.features), bought.description)
    for attribute in goal.attributes:
        is_met = False
        for known in bought.attributes:
            is_met = is_met or similar(known, attribute)
        for text in texts:
            is_met = is_met or attribute in text.lower()
        met += is_met
    for _, wish in goal.options:
        is_met = False
        for value in chosen.values():
            is_met = is_met or similar(color(value), color(wish))
        met += is_met
    met += price <= limit
    share = met / (len(goal.attributes) + len(goal.options) + 1)
    return share * kind(wanted, bought, nouns)


def kind(wanted, bought, nouns):
    mine, other = nouns(wanted.name), nouns(bought.name)
    same = 0.2
    if mine:
        same = len([noun for noun in set(mine) if noun in other]) / len(mine)
    if same == 0:
        return 0.0
    if same < 0.1:
        return 0.1
    paths = [
        {part.strip() for part in x.product_category.split("›")}
        for x in (wanted, bought)
    ]
    if wanted.query == bought.query or len(paths[0] & paths[1]) > 1 or same > 0.2:
        return 1.0
    return 0.5


def plain(text):
    """Small letters of ASCII and beyond Latin-1, digits and single blanks."""
    kept = "".join(c for c in text if not 128 <= ord(c) < 256)
    return " ".join(re.findall(r"[^\W_]+", kept.lower()))
