// Writes src/schema.d.ts, the types of the HTTP API, from its OpenAPI document: `waybill openapi | node api.mjs`.
import { writeFileSync } from 'node:fs'
import { json } from 'node:stream/consumers'
import openapi, { astToString } from 'openapi-typescript'

const document = await json(process.stdin)

/** The recorded examples are most of the document, and no part of a type. */
function withoutExamples(value) {
  if (Array.isArray(value)) return value.map(withoutExamples)
  if (value === null || typeof value !== 'object') return value
  const kept = Object.entries(value).filter(([name]) => name !== 'example' && name !== 'examples')
  return Object.fromEntries(kept.map(([name, inner]) => [name, withoutExamples(inner)]))
}

writeFileSync(new URL('src/schema.d.ts', import.meta.url), astToString(await openapi(withoutExamples(document))))
