-- What a turn does to the tables of records, in a model of them: whole, or cut into leaves by a hash of the project.
-- `trial` stands for a schema, which the benchmark names by the number of leaves.
create schema trial;

create procedure trial.make(leaves integer) language plpgsql as $$
declare
  v_table text;
  v_cut   text := case when leaves > 0 then ' partition by hash (project_id)' else '' end;
begin
  execute 'create table trial.cards (project_id uuid, card_id uuid, hash bytea, content text, primary key (project_id, card_id))' || v_cut;
  execute 'create table trial.entries (project_id uuid, box_id uuid, seq bigint, card_id uuid, primary key (project_id, box_id, seq))' || v_cut;
  execute 'create table trial.boxes (project_id uuid, box_id uuid, length bigint, primary key (project_id, box_id))' || v_cut;
  execute 'create table trial.turns (project_id uuid, turn_id uuid, status text, box_id uuid, out_id uuid, primary key (project_id, turn_id))' || v_cut;
  foreach v_table in array array['cards', 'entries', 'boxes', 'turns'] loop
    for n in 0 .. leaves - 1 loop
      execute format('create table trial.%1$s_%2$s partition of trial.%1$s for values with (modulus %3$s, remainder %2$s)', v_table, n, leaves);
    end loop;
  end loop;
end $$;

-- Two cards in a box, a turn, a look at both; then a card in its output box, and the end. Says how many relation locks it took.
create function trial.turn(p uuid) returns integer language plpgsql as $$
declare
  t  uuid := gen_random_uuid();
  b  uuid := gen_random_uuid();
  o  uuid := gen_random_uuid();
  c1 uuid := gen_random_uuid();
  c2 uuid := gen_random_uuid();
  c3 uuid := gen_random_uuid();
  n  bigint;
  x  text;
begin
  insert into trial.cards select p, u, '\x00', repeat('x', 600) from unnest(array[c1, c2]) u;
  insert into trial.boxes values (p, b, 2), (p, o, 0);
  insert into trial.entries values (p, b, 1, c1), (p, b, 2, c2);
  insert into trial.turns values (p, t, 'queued', b, o);
  select status into x from trial.turns where project_id = p and turn_id = t;
  select sum(length(c.content)) into n
    from trial.entries e
   cross join lateral (select c.content from trial.cards c where c.project_id = p and c.card_id = e.card_id offset 0) c
   where e.project_id = p and e.box_id = b;
  select length into n from trial.boxes where project_id = p and box_id = o for update;
  insert into trial.cards values (p, c3, '\x00', repeat('y', 600));
  update trial.boxes set length = length + 1 where project_id = p and box_id = o;
  insert into trial.entries values (p, o, 1, c3);
  update trial.turns set status = 'success' where project_id = p and turn_id = t;
  return (select count(*) from pg_locks where pid = pg_backend_pid() and locktype = 'relation' and relation <> 'pg_locks'::regclass);
end $$;
