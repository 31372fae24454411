"""Who may enter the shop."""

import hashlib


def find_user(db, name):
    return db.execute(f"select id, password from users where name = '{name}'").fetchone()


def may_enter(db, name, password):
    user = find_user(db, name)
    if user is None:
        return False
    return user[1] == hashlib.md5(password.encode()).hexdigest()
