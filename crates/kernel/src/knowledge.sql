-- Takes what was said of a document out of the index.
create or replace function resource.forget_chunks(p_project uuid, p_document uuid) returns integer
language plpgsql as $$
declare
  v_words tsvector[];
  v_less  record;
begin
  with gone as (
    delete from resource.chunks c where c.project_id = p_project and c.document_id = p_document returning c.words
  )
  select array_agg(g.words) into v_words from gone g;
  for v_less in
    -- Without the project's mark.
    select substr(w.word, 9) as word, count(*)::integer as n
      from unnest(v_words) as g (words) cross join lateral unnest(tsvector_to_array(g.words)) as w (word)
     group by 1
     order by 1
  loop
    update resource.words w
       set n_chunks = w.n_chunks - v_less.n
     where w.project_id = p_project and w.word = v_less.word;
  end loop;
  return coalesce(cardinality(v_words), 0);
end $$;

-- A document is to be found. The caller holds the project's row; what stood at the path before is gone.
--   p_chunks  [{from_line, to_line, heading, content, n_tokens, words: […]}]
create or replace function resource.put_chunks(p_project uuid, p_document uuid, p_chunks jsonb) returns integer
language plpgsql as $$
declare
  v_mark text := right(p_project::text, 8);
  v_put  integer;
begin
  with given as materialized (
    select c.n, c.chunk, array(select jsonb_array_elements_text(c.chunk -> 'words')) as words
      from jsonb_array_elements(p_chunks) with ordinality as c (chunk, n)
  ), put as (
    insert into resource.chunks (project_id, document_id, seq, from_line, to_line, heading, content, n_tokens, words)
    select p_project, p_document, g.n, (g.chunk ->> 'from_line')::integer, (g.chunk ->> 'to_line')::integer, g.chunk ->> 'heading',
           g.chunk ->> 'content', (g.chunk ->> 'n_tokens')::integer,
           array_to_tsvector(array(select v_mark || w.word from unnest(g.words) as w (word)))
      from given g
 returning 1
  ), counted as (
    select w.word, count(*)::integer as n
      from given g cross join lateral unnest(g.words) as w (word)
     group by w.word
     order by w.word
  ), more as (
    insert into resource.words as w (project_id, word, n_chunks)
    select p_project, c.word, c.n from counted c
        on conflict (project_id, word) do update set n_chunks = w.n_chunks + excluded.n_chunks
  )
  select count(*) into v_put from put;
  return v_put;
end $$;

-- Chunks that say the words, best first: each word weighs as much as it is rare. The rarest are looked for, as many as give candidates
-- enough; of the candidates all words count.
create or replace function resource.search_words(p_project uuid, p_kind text, p_folders text[], p_words text[], p_most integer)
returns table (document_id uuid, seq integer, score double precision)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  c_enough  constant integer := 1000;
  v_mark    text := right(p_project::text, 8);
  v_total   double precision;
  v_queries tsquery[];
  v_counts  integer[];
  v_weights double precision[];
  v_query   tsquery;
  v_sum     bigint := 0;
begin
  if current_setting('waybill.project', true) is distinct from p_project::text then
    raise exception 'a search of another project inside a unit of work' using errcode = 'WB013';
  end if;
  select coalesce(sum(d.n_chunks), 0) into v_total from resource.documents d where d.project_id = p_project;
  select array_agg(('''' || replace(replace(v_mark || w.word, '\', '\\'), '''', '''''') || '''')::tsquery order by w.n_chunks, w.word),
         array_agg(w.n_chunks order by w.n_chunks, w.word),
         array_agg(ln(1 + (v_total - w.n_chunks + 0.5) / (w.n_chunks + 0.5)) order by w.n_chunks, w.word)
    into v_queries, v_counts, v_weights
    from (select distinct u.word from unnest(p_words) as u (word)) asked
   cross join lateral (
         select w.word, w.n_chunks
           from resource.words w
          where w.project_id = p_project and w.word = asked.word and w.n_chunks > 0
         offset 0) w;
  if v_queries is null then
    return;
  end if;
  for i in 1 .. cardinality(v_queries) loop
    exit when v_query is not null and v_sum + v_counts[i] > c_enough;
    v_sum := v_sum + v_counts[i];
    v_query := case when v_query is null then v_queries[i] else v_query || v_queries[i] end;
  end loop;
  return query
  select f.document_id, f.seq, f.score
    from (select c.document_id, c.seq, c.n_tokens,
                 (select sum(w.weight) from unnest(v_queries, v_weights) as w (query, weight) where c.words @@ w.query) as score
            from (select c.document_id, c.seq, c.n_tokens, c.words
                    -- By the words first: that is what the index is for.
                    from (select c.project_id, c.document_id, c.seq, c.n_tokens, c.words
                            from resource.chunks c
                           where c.words @@ v_query
                          offset 0) c
                   cross join lateral (
                         select from resource.documents d
                          where d.document_id = c.document_id and d.project_id = p_project and d.kind = p_kind
                            and exists (select from unnest(p_folders) as f (folder)
                                         where d.path = f.folder or starts_with(d.path, f.folder || '/'))
                         offset 0) d
                   where c.project_id = p_project
                   limit 2 * c_enough) c) f
   order by f.score desc, f.n_tokens, f.document_id, f.seq
   limit p_most;
end $$;
alter function resource.search_words owner to waybill_librarian;

-- Chunks whose vectors are nearest. Every one of the project is looked at: exact, and without an index that other projects share.
-- Without the extension `vector` it is WB019.
create or replace function resource.search_meaning(p_project uuid, p_kind text, p_folders text[], p_model text, p_embedding real[],
  p_most integer)
returns table (document_id uuid, seq integer, score double precision)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_schema text;
begin
  if current_setting('waybill.project', true) is distinct from p_project::text then
    raise exception 'a search of another project inside a unit of work' using errcode = 'WB013';
  end if;
  select n.nspname into v_schema from pg_extension e join pg_namespace n on n.oid = e.extnamespace where e.extname = 'vector';
  if not found then
    raise exception 'the extension `vector` is not there' using errcode = 'WB019';
  end if;
  return query execute format(
    'select c.document_id, c.seq, 1 - (c.embedding::%1$I.vector operator(%1$I.<=>) $5::%1$I.vector) as score
       from resource.documents d
       join resource.chunks c on c.project_id = $1 and c.document_id = d.document_id
      where d.project_id = $1 and d.kind = $2 and d.embedded_by = $4 and cardinality(c.embedding) = cardinality($5)
        and exists (select from unnest($3) as f (folder) where d.path = f.folder or starts_with(d.path, f.folder || ''/''))
      order by c.embedding::%1$I.vector operator(%1$I.<=>) $5::%1$I.vector, c.document_id, c.seq
      limit $6', v_schema)
    using p_project, p_kind, p_folders, p_model, p_embedding, p_most;
end $$;
alter function resource.search_meaning owner to waybill_librarian;
