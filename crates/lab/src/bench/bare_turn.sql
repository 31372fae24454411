-- The same rows as a trivial turn through the kernel, written in the fastest way we know: one function per transaction, scalars
-- instead of sets, texts made on the spot. No replay, no batch, no queue of any length: what pgbench sends against.
create schema bench;
grant usage on schema bench to waybill_service;
create sequence bench.ids;
grant usage on sequence bench.ids to waybill_service;

-- Time-ordered, as the kernel's: a random id would cost more in every index.
create function bench.id() returns uuid language sql volatile as $$
  select (lpad(to_hex((extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0') || '7000'
          || '8' || lpad(to_hex(nextval('bench.ids')), 15, '0'))::uuid
$$;

create function bench.enqueue(p uuid, a uuid) returns void language plpgsql as $$
declare
  t   uuid := bench.id();
  c   uuid := bench.id();
  ctx uuid := bench.id();
  o   uuid := bench.id();
  ep  bigint;
  tg  text;
begin
  perform set_config('waybill.project', p::text, true);
  update state.agent_state_head h
     set status = case h.status when 'idle' then 'dispatched' else h.status end, active_agent_turn_id = coalesce(h.active_agent_turn_id, t),
         turn_epoch = h.turn_epoch + (h.status = 'idle')::integer, n_queued = h.n_queued + (h.status <> 'idle')::integer
   where h.project_id = p and h.agent_id = a
  returning case when h.active_agent_turn_id = t then h.turn_epoch end, h.worker_target into ep, tg;
  insert into state.turns (project_id, agent_turn_id, agent_id, context_box_id, output_box_id, query_card_ids, root_turn_id, dispatched_epoch)
  values (p, t, a, ctx, o, array[c], t, ep);
  insert into cardbox.cards (project_id, card_id, n_tokens, type, role, hash, salt, content)
  values (p, c, 170, 'task.instruction', 'user', '\x00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff',
          '\x00112233445566778899aabbccddeeff', to_json(repeat(c::text, 19)));
  insert into cardbox.boxes (project_id, box_id, length) values (p, o, 0), (p, ctx, 1);
  insert into cardbox.box_entries (project_id, box_id, seq, card_id) values (p, ctx, 1, c);
  insert into state.agent_inbox (project_id, agent_turn_id, agent_id, status, worker_target, turn_epoch, dispatched_at)
  values (p, t, a, case when ep is null then 'queued' else 'pending' end, tg, ep, now());
end $$;

create function bench.claim(w uuid, out p uuid, out a uuid, out t uuid, out ep bigint, out tok bigint)
language plpgsql security definer as $$
begin
  -- The lease, the cap of turns in flight and the round robin are what a claim is about: they are not left out.
  select i.project_id, i.agent_id, i.agent_turn_id, i.turn_epoch into p, a, t, ep
    from state.agent_inbox i
   where i.worker_target = 'llm' and i.status = 'pending' and (i.project_id, i.inbox_seq) > ('00000000-0000-0000-0000-000000000000', 0)
     and exists (select from state.worker_leases l where l.worker_id = w and l.expires_at > clock_timestamp())
     and not exists (select from state.agent_inbox r where r.project_id = i.project_id and r.status = 'processing' offset 999)
   order by i.project_id, i.inbox_seq limit 1 for no key update skip locked;
  if not found then return; end if;
  update state.agent_state_head h set status = 'running', claim_token = claim_token + 1
   where h.project_id = p and h.agent_id = a and h.active_agent_turn_id = t and h.turn_epoch = ep returning claim_token into tok;
  update state.agent_inbox i set status = 'processing', worker_id = w, claim_token = tok, silent_by = now() + interval '30 min'
   where i.project_id = p and i.agent_turn_id = t;
  perform from state.turns u where u.project_id = p and u.agent_turn_id = t;
end $$;

create function bench.finish(p uuid, a uuid, t uuid, ep bigint, tok bigint) returns void language plpgsql as $$
declare
  s  uuid := bench.id();
  c1 uuid := bench.id();
  c2 uuid := bench.id();
  o  uuid;
  n  bigint;
  q  integer;
  nt uuid;
  ep2 bigint;
begin
  perform set_config('waybill.project', p::text, true);
  update state.agent_state_head h set status = 'idle', active_agent_turn_id = null
   where h.project_id = p and h.agent_id = a and h.active_agent_turn_id = t and h.turn_epoch = ep and h.claim_token = tok
     and h.status = 'running' returning n_queued into q;
  if not found then raise exception 'stale'; end if;
  insert into cardbox.cards (project_id, card_id, n_tokens, type, role, hash, salt, content)
  values (p, c1, 170, 'agent.thought', 'assistant', '\x00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff', '\x00112233445566778899aabbccddeeff',
          to_json(repeat(c1::text, 19))),
         (p, c2, 170, 'task.deliverable', 'assistant', '\x00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff', '\x00112233445566778899aabbccddeeff',
          to_json(repeat(c2::text, 19)));
  update state.turns u set status = 'success', finished_at = now(), deliverable_card_id = c2, turn_epoch = ep, claim_token = tok
   where u.project_id = p and u.agent_turn_id = t and u.status = 'open' returning output_box_id into o;
  update cardbox.boxes b set length = length + 2 where b.project_id = p and b.box_id = o returning length into n;
  insert into cardbox.box_entries (project_id, box_id, seq, card_id) values (p, o, n - 1, c1), (p, o, n, c2);
  insert into state.agent_steps (project_id, agent_turn_id, step_id, agent_id, turn_epoch, claim_token, outcome, from_seq, to_seq)
  values (p, t, s, a, ep, tok, 'finished', n - 1, n);
  delete from state.agent_inbox i where i.project_id = p and i.agent_turn_id = t;
  delete from state.waiting_calls w where w.project_id = p and w.agent_turn_id = t;
  insert into state.outbox (project_id, agent_turn_id, event, event_id, agent_id, status, card_id) values (p, t, 'task', t, a, 'success', c2);
  if q > 0 then
    select i.agent_turn_id into nt from state.agent_inbox i
     where i.project_id = p and i.agent_id = a and i.status = 'queued' order by i.inbox_seq limit 1;
    update state.agent_state_head h set status = 'dispatched', active_agent_turn_id = nt, turn_epoch = turn_epoch + 1, n_queued = n_queued - 1
     where h.project_id = p and h.agent_id = a returning turn_epoch into ep2;
    update state.agent_inbox i set status = 'pending', turn_epoch = ep2, armed_at = now(), dispatched_at = now()
     where i.project_id = p and i.agent_turn_id = nt;
  end if;
end $$;

alter function bench.claim owner to waybill_scheduler;
grant execute on all functions in schema bench to waybill_service, waybill_scheduler;
-- Which agent a number stands for.
create table bench.agents (n integer primary key, project_id uuid not null, agent_id uuid not null);
grant select on bench.agents to waybill_service;
