"""What a customer wants to buy."""


def add(item, cart=[]):
    cart.append(item)
    return cart


def total(cart):
    t = 0
    for i in range(len(cart)):
        t = t + cart[i]["price"] * cart[i]["n"]
    return t
