import { useQuery } from '@tanstack/react-query'
import { useNavigate } from '@tanstack/react-router'
import { type KeyboardEvent, type RefObject, useState } from 'react'
import { api, type Schemas, take } from '../api'
import { plain } from '../parts'
import style from './frame.module.css'
import { useWords } from './words'

/** Finds anything by what can be pasted: an id, its beginning, a hash, a path. */
export function Find({ project, input }: { project: string; input: RefObject<HTMLInputElement | null> }) {
  const w = useWords()
  const navigate = useNavigate()
  const [text, setText] = useState('')
  const asked = text.trim()
  const found = useQuery({
    queryKey: [project, 'find', asked],
    enabled: asked.length >= 8,
    queryFn: ({ signal }) =>
      take(api.GET('/v1/projects/{project}/find', { params: { path: { project }, query: { q: asked } }, signal })),
  })
  const open = (thing: Schemas['FoundThing']) => {
    if (thing.kind !== 'turn') return
    setText('')
    input.current?.blur()
    navigate({ to: '/$project/turns/$turn', params: { project, turn: thing.id }, search: {} })
  }
  const press = (event: KeyboardEvent) => {
    if (event.key === 'Escape') setText('')
    const only = found.data?.find(thing => thing.kind === 'turn')
    if (event.key === 'Enter' && only) open(only)
  }
  return (
    <search className={style.find}>
      <input
        ref={input}
        type="search"
        value={text}
        placeholder={w.find}
        aria-label={w.findLabel}
        spellCheck={false}
        onChange={event => setText(event.target.value)}
        onKeyDown={press}
      />
      {asked.length >= 8 && (found.data || found.error) && (
        <div className={style.found}>
          {found.error && <p>{found.error.message || w.notAsked}</p>}
          {found.data?.length === 0 && <p>{w.nothingFound}</p>}
          {found.data?.map(thing => (
            <button
              type="button"
              className="plain"
              key={thing.kind + thing.id}
              onClick={() => open(thing)}
              disabled={thing.kind !== 'turn'}
            >
              {w.foundKind[thing.kind] ?? thing.kind} · {plain(thing.title) || thing.id}
              {thing.kind !== 'turn' && <span className="muted"> · {w.noPage}</span>}
            </button>
          ))}
        </div>
      )}
    </search>
  )
}
