// Writes the types of the HTTP API and its paths, from its OpenAPI document: `waybill openapi | node api.mjs`. They are part of the TypeScript client,
// and the console has its types from there.
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

const lines = Object.entries(document.paths).flatMap(([path, methods]) =>
  Object.entries(methods)
    .filter(([, operation]) => operation.operationId)
    .map(([method, { operationId, parameters = [], requestBody, responses }]) => {
      const is = {
        method: method.toUpperCase(),
        path,
        once: parameters.some(one => one.name === 'Idempotency-Key'),
        sends: Object.keys(requestBody?.content ?? {})[0] ?? null,
        lists: parameters.filter(one => one.in === 'query' && one.explode === false).map(one => one.name),
        answers: Object.keys(responses['200']?.content ?? {})[0] ?? null,
      }
      return `  ${operationId}: ${JSON.stringify(is)},`
    }),
)

const made = '// Written by console/api.mjs from the OpenAPI document.\n'
const here = name => new URL(`../sdk/typescript/src/${name}.ts`, import.meta.url)
writeFileSync(here('schema'), made + astToString(await openapi(withoutExamples(document))))
writeFileSync(
  here('operations'),
  `${made}import type { operations as Described } from './schema.ts'

/** An operation. \`once\`: it takes an \`Idempotency-Key\`. \`lists\`: parameters whose values are separated by commas. \`sends\`, \`answers\`: media types. */
export interface Route {
  method: string
  path: string
  once: boolean
  sends: string | null
  lists: string[]
  answers: string | null
}

export const operations: { readonly [name in keyof Described]: Route } = {
${lines.join('\n')}
}
`,
)
