-- Rows that are there for their statistics only: five thousand in every table, of one large project and fifty small ones. Nothing checks them,
-- so the rules go first; the planner does not go by any of these.
set session_replication_role = replica;
do $$
declare
  v_rule  record;
  v_table record;
  v_names text;
  v_values text;
begin
  for v_rule in
    select k.conrelid::regclass as on_table, k.contypid::regtype as on_domain, k.conrelid <> 0 as is_table, k.conname
      from pg_constraint k join pg_namespace n on n.oid = k.connamespace
     where n.nspname in ('state', 'cardbox', 'resource', 'parts') and k.contype = 'c' and k.coninhcount = 0
  loop
    if v_rule.is_table then
      execute format('alter table %s drop constraint %I', v_rule.on_table, v_rule.conname);
    else
      execute format('alter domain %s drop constraint %I', v_rule.on_domain, v_rule.conname);
    end if;
  end loop;
  for v_table in
    select c.oid, c.oid::regclass as name, c.relkind = 'p' as is_history,
           exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary and i.indnatts = 1) as is_one_each
      from pg_class c join pg_namespace n on n.oid = c.relnamespace
     where n.nspname in ('state', 'cardbox', 'resource') and c.relkind in ('r', 'p')
       and exists (select from pg_attribute a where a.attrelid = c.oid and a.attname = 'project_id')
  loop
    execute format('select %L where not exists (select from %s offset 100)', 'empty', v_table.name) into v_names;
    continue when v_names is null;
    select string_agg(quote_ident(a.attname), ', ' order by a.attnum),
           string_agg(format(case when a.attnotnull then '(%s)::%s' else 'case when g %% 3 > 0 then (%s)::%s end' end,
                             v.value, format_type(a.atttypid, null)), ', ' order by a.attnum)
      into v_names, v_values
      from pg_attribute a
      join pg_type t on t.oid = a.atttypid
      join pg_type b on b.oid = case t.typtype when 'd' then t.typbasetype else t.oid end
     cross join lateral (
           select case
                    when a.attname = 'project_id' and v_table.is_one_each then 'gen_random_uuid()'
                    when a.attname = 'project_id' then
                      $v$case when g <= 50 then md5(g::text)::uuid else '00000000-0000-0000-0000-000000000001' end$v$
                    when a.attname = 'status' then
                      $v$(array['open', 'pending', 'processing', 'queued', 'deferred', 'success'])[1 + g % 6]$v$
                    -- In the partition of the present.
                    when b.typname = 'uuid' and v_table.is_history then
                      format('overlay(md5(g || %L) placing left(replace(state.first_id(now())::text, ''-'', ''''), 12) from 1)::uuid', a.attname)
                    when b.typname = 'uuid' then format('md5(g || %L)::uuid', a.attname)
                    when b.typname = 'text' then format('md5(g || %L)', a.attname)
                    when b.typname = 'bytea' then 'sha256(g::text::bytea)'
                    when b.typname = 'int2' then '(g % 16)::int2'
                    when b.typname in ('int4', 'int8') then 'g'
                    when b.typname = 'date' then $v$date '2026-01-01' + g$v$
                    when b.typname = 'timestamptz' then $v$now() + g * interval '1 second'$v$
                    when b.typname = 'bool' then '(g % 2 = 0)'
                    when b.typname in ('json', 'jsonb') then $v$'{}'$v$
                    when b.typname = 'tsvector' then $v$array_to_tsvector(array[md5(g::text)])$v$
                    when b.typname = 'xid8' then $v$'0'$v$
                    when b.typcategory = 'A' then $v$'{}'$v$
                    else 'null'
                  end) v (value)
     where a.attrelid = v_table.oid and a.attnum > 0 and not a.attisdropped and a.attgenerated = '' and a.attidentity <> 'a';
    execute format('insert into %s (%s) select %s from generate_series(1, 5000) g', v_table.name, v_names, v_values);
  end loop;
end $$;
