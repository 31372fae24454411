-- Calls of agents that run elsewhere, recorded on their way to a model provider. docs/spec.md, RC-1 …; docs/record.md.

-- One row for each recorded turn: how the next request of its conversation finds it. The digests are keyed with the key of the project and name the key that
-- sent it, so that a conversation of another key or session is never found, and no reader can compare one with a guess.
create table state.recordings (
  project_id    uuid        not null,
  agent_turn_id uuid        not null,
  -- Of what it begins with, up to the first message that is no system prompt; and of all its messages so far.
  opening       bytea       not null check (octet_length(opening) = 16),
  tail          bytea       not null check (octet_length(tail) = 16),
  n_messages    integer     not null check (n_messages >= 0),
  -- Of the last answer, by its first call or its text; none: the last call failed. And of what the provider itself remembers it by.
  answer        bytea,
  state         bytea,
  -- What a request begins with that goes on from there: its tail, and the answer after it.
  leads_to      bytea       generated always as (tail || coalesce(answer, '')) stored,
  -- The turn that it departs from, and the first message that differs. None: it begins a conversation.
  departs_from  uuid,
  differs_at    integer,
  primary key (project_id, agent_turn_id),
  check ((departs_from is null) = (differs_at is null))
) with (fillfactor = 80);
create index recordings_by_tail on state.recordings (tail, project_id, agent_turn_id);
create index recordings_by_leads_to on state.recordings (leads_to, project_id, agent_turn_id);
create index recordings_by_answer on state.recordings (answer, project_id, agent_turn_id) where answer is not null;
create index recordings_by_state on state.recordings (state, project_id, agent_turn_id) where state is not null;
create index recordings_by_opening on state.recordings (opening, project_id, agent_turn_id);

-- What tool calls of recorded answers said at length: a conversation of the same key and session that begins with the same words is that of a sub-agent.
create table state.recorded_asks (
  project_id    uuid        not null,
  said          bytea       not null check (octet_length(said) = 16),
  agent_turn_id uuid        not null,
  primary key (project_id, said, agent_turn_id)
);
create index recorded_asks_by_turn on state.recorded_asks (agent_turn_id, project_id);

alter table state.recorded_asks enable row level security;
alter table state.recorded_asks force row level security;
create policy project on state.recorded_asks using (project_id = current_setting('waybill.project')::uuid);
grant select, insert on state.recorded_asks to waybill_common;

alter table state.recordings enable row level security;
alter table state.recordings force row level security;
create policy project on state.recordings using (project_id = current_setting('waybill.project')::uuid);
grant select, insert, update (tail, n_messages, answer, state) on state.recordings to waybill_common;
