// Changes the settings of a pool. Only what was changed is sent, together with what it was before.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { get, type JsonChange, patchJson } from "../api";
import type { Pool } from "../lab";
import { Action, Field } from "../parts";

type Value = string | number;
type Values = Record<string, Value>;

interface Setting {
  field: string;
  label: string;
  hint?: string;
  number?: boolean;
  options?: string[];
}

const POLICY: Setting = {
  field: "scaleDownPolicy",
  label: "Goes first when it shrinks",
  hint: "Explicit: only members that are named in a removal",
  options: ["NewestFirst", "OldestFirst", "Explicit"],
};

const SETTINGS: Record<Pool["kind"], Setting[]> = {
  ExporterSet: [
    { field: "minReplicas", label: "At least", number: true },
    { field: "maxReplicas", label: "Ceiling", hint: "0 for no limit", number: true },
    { field: "minAvailableReplicas", label: "Keep warm", number: true },
    { field: "scaleDownCooldown", label: "Shrink after", hint: "For example 90s or 5m" },
    POLICY,
  ],
  VirtualTargetPool: [{ field: "replicas", label: "Members", number: true }, POLICY],
};

/** What to send; a value that somebody else has changed meanwhile makes all of it fail. */
export function changes(before: Values, after: Values): JsonChange[] {
  return Object.keys(after)
    .filter((field) => after[field] !== before[field])
    .flatMap((field): JsonChange[] => {
      const path = `/spec/${field}`;
      const known: JsonChange[] =
        before[field] === undefined ? [] : [{ op: "test", path, value: before[field] }];
      return [...known, { op: "add", path, value: after[field] }];
    });
}

export function EditPool(props: { pool: Pool; path: string }): JSX.Element {
  const [before, setBefore] = useState<Values | null>(null);
  const [after, setAfter] = useState<Values>({});
  const settings = SETTINGS[props.pool.kind];
  const close = (): void => setBefore(null);
  const open = async (): Promise<void> => {
    const { spec } = await get<{ spec: Values }>(props.path);
    const known = settings.map(({ field }) => [field, spec[field]] as const);
    const found = Object.fromEntries(known.filter(([, value]) => value !== undefined)) as Values;
    setAfter(found);
    setBefore(found);
  };
  if (!before) return <Action run={open}>Edit</Action>;
  const wanted = changes(before, after);
  return (
    <div class="edit" role="group" aria-label={`Settings of ${props.pool.title}`}>
      {settings.map(({ field, label, hint, number, options }) => (
        <Field key={field} label={label} hint={hint}>
          {(id) =>
            options ? (
              <select
                id={id}
                value={after[field]}
                onChange={(event) => setAfter({ ...after, [field]: event.currentTarget.value })}
              >
                {options.map((option) => (
                  <option key={option}>{option}</option>
                ))}
              </select>
            ) : number ? (
              <input
                id={id}
                type="number"
                min="0"
                value={after[field]}
                onInput={({ currentTarget: { value } }) =>
                  setAfter({ ...after, [field]: value === "" ? "" : Number(value) })
                }
              />
            ) : (
              <input
                id={id}
                value={after[field]}
                onInput={(event) => setAfter({ ...after, [field]: event.currentTarget.value })}
              />
            )
          }
        </Field>
      ))}
      <div class="card-actions">
        <Action
          class="primary"
          disabled={!wanted.length}
          run={async () => {
            await patchJson(props.path, wanted);
            close();
          }}
        >
          Save
        </Action>
        <button onClick={close}>Cancel</button>
      </div>
    </div>
  );
}
