-- The last of the function files: nobody but the service calls any of them.
revoke execute on all functions in schema cardbox, state, scheduler, resource from public;
grant execute on all functions in schema state, scheduler, resource to waybill_service;
grant execute on function cardbox.put, cardbox.put_many, cardbox.rows, cardbox.n_within, cardbox.expire, cardbox.delete, cardbox.put_artifact, cardbox.collect to waybill_service;
grant execute on function state.tell, state.next_token, state.next_ready, state.room, state.entries_read, state.is_long, state.mark_queue, state.minted_at, state.history, state.rest,
  state.weeks_ahead to waybill_scheduler;
grant usage on schema scheduler to waybill_scheduler;
