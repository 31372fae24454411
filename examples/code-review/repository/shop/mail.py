"""Tells customers what happened to their orders."""


def confirm(send, order):
    try:
        send(order["mail"], f"Thank you. Your order {order['id']} is on its way.")
    except:
        pass
