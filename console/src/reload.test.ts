import { QueryClient, QueryObserver } from '@tanstack/react-query'
import { expect, test } from 'vitest'
import { reloadAll } from './reload'

const pause = () => new Promise(done => setTimeout(done, 20))

/** A query that is watched, and whose loads end when they are told to. */
function watched(queries: QueryClient, key: string[]) {
  const loads: { end(value: string): void; fail(): void }[] = []
  const observer = new QueryObserver(queries, {
    queryKey: key,
    retry: false,
    staleTime: Number.POSITIVE_INFINITY,
    queryFn: () =>
      new Promise<string>((done, failed) => loads.push({ end: done, fail: () => failed(new Error('no')) })),
  })
  observer.subscribe(() => {})
  return { loads, observer }
}

test('what is loaded for the first time while the stream opens is loaded once more', async () => {
  const queries = new QueryClient()
  const { loads, observer } = watched(queries, ['p', 'turn'])
  const other = watched(queries, ['q', 'turn'])
  await pause()
  expect(loads).toHaveLength(1)
  reloadAll(queries, ['p'])
  await pause()
  expect(loads).toHaveLength(1)
  loads[0]!.end('before the stream')
  await pause()
  expect(loads).toHaveLength(2)
  loads[1]!.end('after')
  await pause()
  expect(loads).toHaveLength(2)
  expect(observer.getCurrentResult().data).toBe('after')
  expect(other.loads).toHaveLength(1)
})

test('what was loaded before is loaded again at once', async () => {
  const queries = new QueryClient()
  const { loads } = watched(queries, ['p', 'turn'])
  await pause()
  loads[0]!.end('old')
  await pause()
  reloadAll(queries, ['p'])
  await pause()
  expect(loads).toHaveLength(2)
})
