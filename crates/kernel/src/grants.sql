-- The last of the function files: only Waybill's own logins call any of them.
revoke execute on all functions in schema cardbox, state, scheduler, resource from public;
grant execute on all functions in schema state, resource to waybill_common;
-- What a worker needs across projects; the rest is for sweeps, the relay, the API and commands.
grant execute on function scheduler.find_project, scheduler.claim, scheduler.claim_many, scheduler.claim_calls, scheduler.held_turns, scheduler.held_calls,
  scheduler.keep_lease, scheduler.renew_lease, scheduler.end_worker to waybill_common;
grant execute on all functions in schema scheduler to waybill_service, waybill_orchestrator;
revoke execute on function scheduler.find_key, scheduler.find_browser_session, scheduler.end_browser_session from waybill_orchestrator;
-- What a project's retention does not keep: removed by what is set, not by what the caller says.
grant execute on function cardbox.retain to waybill_service, waybill_orchestrator;
grant execute on function cardbox.set_retention, cardbox.hold_retention to waybill_service;
grant execute on function cardbox.add_counts to waybill_common;
grant execute on function cardbox.put, cardbox.put_many, cardbox.rows, cardbox.conflicting, cardbox.n_within, cardbox.expire, cardbox.delete, cardbox.put_artifact, cardbox.collect to waybill_common;
grant execute on function state.tell, state.next_token, state.next_ready, state.room, state.entries_read, state.is_measured, state.is_long, state.mark_queue, state.history,
  state.time_of, state.partitions, state.history_ahead to waybill_scheduler;
grant usage on schema scheduler to waybill_scheduler;
